// a product that is written in two ways is computed once
// @run r --function=main --input=32x48xf32=2 --input=48x64xf32=1 --input=32x64xf32=1
func.func @main(%x: tensor<32x48xf32>, %w: tensor<48x64xf32>, %v: tensor<32x64xf32>) -> (tensor<32x64xf32>, tensor<32x64xf32>, tensor<32x64xf32>) {
  %a = stablehlo.dot %x, %w : (tensor<32x48xf32>, tensor<48x64xf32>) -> tensor<32x64xf32>
  %b = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<32x48xf32>, tensor<48x64xf32>) -> tensor<32x64xf32>
  %c = stablehlo.sine %v : tensor<32x64xf32>
  %d = stablehlo.sine %v : tensor<32x64xf32>
  %e = stablehlo.add %a, %v : tensor<32x64xf32>
  %f = stablehlo.multiply %b, %v : tensor<32x64xf32>
  %g = stablehlo.add %e, %f : tensor<32x64xf32>
  return %g, %c, %d : tensor<32x64xf32>, tensor<32x64xf32>, tensor<32x64xf32>
}
