// relu(x w + b) on buffers: a fill, a product, and an elementwise op over its result.
func.func @linear(%x: memref<32x64xf32>, %w: memref<64x16xf32>, %b: memref<16xf32>, %y: memref<32x16xf32>) {
  %c0 = arith.constant 0.0 : f32
  linalg.fill ins(%c0 : f32) outs(%y : memref<32x16xf32>)
  linalg.matmul ins(%x, %w : memref<32x64xf32>, memref<64x16xf32>) outs(%y : memref<32x16xf32>)
  linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%b : memref<16xf32>) outs(%y : memref<32x16xf32>) {
  ^bb0(%bias: f32, %sum: f32):
    %biased = arith.addf %sum, %bias : f32
    %relu = arith.maximumf %biased, %c0 : f32
    linalg.yield %relu : f32
  }
  return
}
