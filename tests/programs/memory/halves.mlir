func.func @main(%x: tensor<?x?xf16>, %w: tensor<?x?xf16>) -> (tensor<?x?xf16>, tensor<?xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf16>
  %1 = stablehlo.convert %0 : (tensor<?x?xf16>) -> tensor<?x?xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32>, tensor<f32>) -> tensor<?xf32>
  return %0, %2 : tensor<?x?xf16>, tensor<?xf32>
}
