// a region that reads a reversal goes through one dimension, and divides its position by the length of a row; it is located at the hyperbolic tangent
// @run r --function=main --input=64x64xf32=2 --input=64x64xf32=3
func.func @main(%x: tensor<64x64xf32>, %g: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = call @sums(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = call @flip(%0) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = stablehlo.add %1, %g : tensor<64x64xf32>
  %3 = stablehlo.tanh %2 : tensor<64x64xf32>
  return %3 : tensor<64x64xf32>
}
func.func private @sums(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %w = "stablehlo.reduce_window"(%x, %c) <{padding = dense<[[0, 0], [63, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) : (tensor<64x64xf32>, tensor<f32>) -> tensor<64x64xf32>
  return %w : tensor<64x64xf32>
}
func.func private @flip(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.reverse %x, dims = [1] : tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
