// numbers that are put into tensors are copies and fills of single elements
// @run r --function=main --input=16x48xf32=2 --input=5 --input=3
func.func @main(%x: tensor<16x48xf32>, %i: index, %s: f32) -> (tensor<16x48xf32>, tensor<3xf32>) {
  %c3 = arith.constant 3 : index
  %k = arith.constant 1001.0 : f32
  %v = arith.mulf %s, %k : f32
  %a = tensor.insert %v into %x[%c3, %i] : tensor<16x48xf32>
  %t = math.tanh %a : tensor<16x48xf32>
  %f = tensor.from_elements %s, %v, %k : tensor<3xf32>
  return %t, %f : tensor<16x48xf32>, tensor<3xf32>
}
