// the logarithm and the sine are taken before the broadcast, which then is a kernel that only moves elements
// @run r --function=main --input=512x512xf32=2 --input=512x512x8xf32=1
func.func @main(%f: tensor<512x512xf32>, %y: tensor<512x512x8xf32>) -> (tensor<512x512x8xf32>, tensor<512x512x8xf32>) {
  %bc = stablehlo.broadcast_in_dim %f, dims = [0, 1] : (tensor<512x512xf32>) -> tensor<512x512x8xf32>
  %bl = stablehlo.log %bc : tensor<512x512x8xf32>
  %s = stablehlo.sine %bl : tensor<512x512x8xf32>
  %a = stablehlo.add %s, %y : tensor<512x512x8xf32>
  return %s, %a : tensor<512x512x8xf32>, tensor<512x512x8xf32>
}
