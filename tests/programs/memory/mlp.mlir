func.func @main(%x: tensor<?x64xf32>, %w: tensor<64x128xf32>, %v: tensor<128x32xf32>) -> tensor<?x32xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x64xf32>, tensor<64x128xf32>) -> tensor<?x128xf32>
  %1 = stablehlo.tanh %0 : tensor<?x128xf32>
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0] : (tensor<?x128xf32>, tensor<128x32xf32>) -> tensor<?x32xf32>
  return %2 : tensor<?x32xf32>
}
