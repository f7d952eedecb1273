// @flags --iree-dispatch-creation-enable-fuse-horizontal-contractions
// products of the same rows become one loop with three results, of which only the first has a location; a fourth one is another product
// @run r --function=main --input=64x96xf16=2 --input=96x96xf16=1 --input=96x96xf16=1 --input=96x96xf16=1 --input=96x48xf16=1
func.func @main(%x: tensor<64x96xf16>, %q: tensor<96x96xf16>, %k: tensor<96x96xf16>, %v: tensor<96x96xf16>, %w: tensor<96x48xf16>) -> (tensor<64x96xf32>, tensor<64x96xf32>, tensor<64x96xf32>, tensor<64x48xf32>) {
  %dq = stablehlo.dot_general %x, %q, contracting_dims = [1] x [0] : (tensor<64x96xf16>, tensor<96x96xf16>) -> tensor<64x96xf32>
  %dk = stablehlo.dot_general %x, %k, contracting_dims = [1] x [0] : (tensor<64x96xf16>, tensor<96x96xf16>) -> tensor<64x96xf32>
  %dw = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x96xf16>, tensor<96x48xf16>) -> tensor<64x48xf32>
  %dv = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<64x96xf16>, tensor<96x96xf16>) -> tensor<64x96xf32>
  %t = stablehlo.tanh %dk : tensor<64x96xf32>
  return %dq, %t, %dv, %dw : tensor<64x96xf32>, tensor<64x96xf32>, tensor<64x96xf32>, tensor<64x48xf32>
}
