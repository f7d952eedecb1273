// relu(x w + b) on tensors, to be tiled and fused.
func.func @linear(%x: tensor<32x64xf32>, %w: tensor<64x16xf32>, %b: tensor<16xf32>) -> tensor<32x16xf32> {
  %c0 = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x16xf32>
  %f = linalg.fill ins(%c0 : f32) outs(%e : tensor<32x16xf32>) -> tensor<32x16xf32>
  %m = linalg.matmul ins(%x, %w : tensor<32x64xf32>, tensor<64x16xf32>) outs(%f : tensor<32x16xf32>) -> tensor<32x16xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%m, %b : tensor<32x16xf32>, tensor<16xf32>) outs(%e : tensor<32x16xf32>) {
  ^bb0(%sum: f32, %bias: f32, %out: f32):
    %biased = arith.addf %sum, %bias : f32
    %relu = arith.maximumf %biased, %c0 : f32
    linalg.yield %relu : f32
  } -> tensor<32x16xf32>
  return %r : tensor<32x16xf32>
}
