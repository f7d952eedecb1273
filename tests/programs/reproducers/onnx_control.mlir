// branches and loops of ONNX: the ops in them stand for themselves; the first arm is the one of else
// @run r --function=main --input=4x32xf32=0.5 --input=i1=01 --input=i64=3
func.func @main(%x: !torch.vtensor<[4,32],f32>, %p: !torch.vtensor<[],i1>, %n: !torch.vtensor<[],si64>) -> (!torch.vtensor<[4,32],f32>, !torch.vtensor<[4,32],f32>) attributes {torch.onnx_meta.ir_version = 8 : si64, torch.onnx_meta.opset_version = 18 : si64} {
  %t = torch.operator "onnx.Tanh"(%x) : (!torch.vtensor<[4,32],f32>) -> !torch.vtensor<[4,32],f32>
  %r = torch.operator "onnx.If"(%p) : (!torch.vtensor<[],i1>) -> !torch.vtensor<[4,32],f32> {
    %a = torch.operator "onnx.Sin"(%t) : (!torch.vtensor<[4,32],f32>) -> !torch.vtensor<[4,32],f32>
    torch.operator_terminator %a : !torch.vtensor<[4,32],f32>
  }, {
    %a = torch.operator "onnx.Exp"(%t) : (!torch.vtensor<[4,32],f32>) -> !torch.vtensor<[4,32],f32>
    torch.operator_terminator %a : !torch.vtensor<[4,32],f32>
  }
  %c = torch.operator "onnx.Constant"() {torch.onnx.value = dense<true> : tensor<i1>} : () -> !torch.vtensor<[],i1>
  %l = torch.operator "onnx.Loop"(%n, %c, %r) : (!torch.vtensor<[],si64>, !torch.vtensor<[],i1>, !torch.vtensor<[4,32],f32>) -> !torch.vtensor<[4,32],f32> {
  ^bb0(%i: !torch.vtensor<[],si64>, %cond: !torch.vtensor<[],i1>, %v: !torch.vtensor<[4,32],f32>):
    %v1 = torch.operator "onnx.Cos"(%v) : (!torch.vtensor<[4,32],f32>) -> !torch.vtensor<[4,32],f32>
    %v2 = torch.operator "onnx.Add"(%v1, %x) : (!torch.vtensor<[4,32],f32>, !torch.vtensor<[4,32],f32>) -> !torch.vtensor<[4,32],f32>
    torch.operator_terminator %cond, %v2 : !torch.vtensor<[],i1>, !torch.vtensor<[4,32],f32>
  }
  return %r, %l : !torch.vtensor<[4,32],f32>, !torch.vtensor<[4,32],f32>
}
