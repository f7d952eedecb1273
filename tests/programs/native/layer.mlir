// A layer: matrix product, bias, ReLU; then a second product. Extents and constants name the ops.
func.func @kernel(%x: memref<96x112xf32>, %w: memref<112x120xf32>, %bias: memref<120xf32>, %v: memref<120x40xf32>,
                %hidden: memref<96x120xf32>, %out: memref<96x40xf32>) {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant 0.5009765625 : f32
  linalg.fill ins(%zero : f32) outs(%hidden : memref<96x120xf32>)
  linalg.matmul ins(%x, %w : memref<96x112xf32>, memref<112x120xf32>) outs(%hidden : memref<96x120xf32>)
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
                  iterator_types = ["parallel", "parallel"]}
    ins(%bias : memref<120xf32>) outs(%hidden : memref<96x120xf32>) {
  ^bb0(%b: f32, %h: f32):
    %biased = arith.addf %h, %b : f32
    %relu = arith.maximumf %biased, %zero : f32
    %scaled = arith.mulf %relu, %scale : f32
    linalg.yield %scaled : f32
  }
  linalg.fill ins(%zero : f32) outs(%out : memref<96x40xf32>)
  linalg.matmul ins(%hidden, %v : memref<96x120xf32>, memref<120x40xf32>) outs(%out : memref<96x40xf32>)
  return
}
