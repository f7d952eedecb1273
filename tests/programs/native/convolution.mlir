// A small network: convolution, bias and ReLU, pooling, and a product.
func.func @kernel(%image: memref<1x34x34x3xf32>, %filter: memref<3x3x3x16xf32>, %features: memref<1x32x32x16xf32>,
                %pooled: memref<1x16x16x16xf32>, %weights: memref<16x10xf32>, %scores: memref<256x10xf32>) {
  %zero = arith.constant 0.0 : f32
  %bias = arith.constant 0.1259765625 : f32
  %least = arith.constant -3.0e+38 : f32
  linalg.fill ins(%zero : f32) outs(%features : memref<1x32x32x16xf32>)
  linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%image, %filter : memref<1x34x34x3xf32>, memref<3x3x3x16xf32>) outs(%features : memref<1x32x32x16xf32>)
  linalg.generic {indexing_maps = [affine_map<(n, h, w, c) -> (n, h, w, c)>],
                  iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
    outs(%features : memref<1x32x32x16xf32>) {
  ^bb0(%value: f32):
    %biased = arith.addf %value, %bias : f32
    %relu = arith.maximumf %biased, %zero : f32
    linalg.yield %relu : f32
  }
  linalg.fill ins(%least : f32) outs(%pooled : memref<1x16x16x16xf32>)
  %window = memref.alloc() : memref<2x2xf32>
  linalg.pooling_nhwc_max {dilations = dense<1> : vector<2xi64>, strides = dense<2> : vector<2xi64>}
    ins(%features, %window : memref<1x32x32x16xf32>, memref<2x2xf32>) outs(%pooled : memref<1x16x16x16xf32>)
  memref.dealloc %window : memref<2x2xf32>
  %rows = memref.collapse_shape %pooled [[0, 1, 2], [3]] : memref<1x16x16x16xf32> into memref<256x16xf32>
  linalg.fill ins(%zero : f32) outs(%scores : memref<256x10xf32>)
  linalg.matmul ins(%rows, %weights : memref<256x16xf32>, memref<16x10xf32>) outs(%scores : memref<256x10xf32>)
  return
}
