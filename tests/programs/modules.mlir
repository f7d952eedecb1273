module @main {
  util.func private @library.scaled(%x: !hal.buffer_view) -> !hal.buffer_view

  util.func public @both(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %o: tensor<16x16xf32>) -> tensor<16x16xf32> {
    %a = linalg.matmul ins(%x, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // A
    %view = hal.tensor.export %a : tensor<16x16xf32> -> !hal.buffer_view
    %scaled = util.call @library.scaled(%view) : (!hal.buffer_view) -> !hal.buffer_view
    %y = hal.tensor.import %scaled : !hal.buffer_view -> tensor<16x16xf32>
    %b = linalg.matmul ins(%y, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // B
    util.return %b : tensor<16x16xf32>
  }
}
