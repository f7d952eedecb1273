// of two roots that are the same the compiler keeps the later one, and what only changes nothing is gone
// @run r --function=main --input=4x8x16xf32=2
func.func @main(%x: !torch.vtensor<[4,8,16],f32>) -> !torch.vtensor<[4,8,16],f32> attributes {torch.onnx_meta.ir_version = 8 : si64, torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.producer_name = "t", torch.onnx_meta.producer_version = "1"} {
  %one = torch.operator "onnx.Constant"() {torch.onnx.value = dense<1.0> : tensor<f32>} : () -> !torch.vtensor<[],f32>
  %p = torch.operator "onnx.Abs"(%x) : (!torch.vtensor<[4,8,16],f32>) -> !torch.vtensor<[4,8,16],f32>
  %n = torch.operator "onnx.Mul"(%p, %one) : (!torch.vtensor<[4,8,16],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[4,8,16],f32>
  %a = torch.operator "onnx.Sqrt"(%p) : (!torch.vtensor<[4,8,16],f32>) -> !torch.vtensor<[4,8,16],f32>
  %b = torch.operator "onnx.Sqrt"(%n) : (!torch.vtensor<[4,8,16],f32>) -> !torch.vtensor<[4,8,16],f32>
  %s = torch.operator "onnx.Sub"(%a, %b) : (!torch.vtensor<[4,8,16],f32>, !torch.vtensor<[4,8,16],f32>) -> !torch.vtensor<[4,8,16],f32>
  return %s : !torch.vtensor<[4,8,16],f32>
}
