// Three equal layers share a kernel; each line with a label is one site, and they run in the order of the labels' chain.
func.func @main(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %o: tensor<16x16xf32>, %v: tensor<16x24xf32>, %p: tensor<16x24xf32>) -> tensor<16x24xf32> {
  %a = linalg.matmul ins(%x, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // A
  %b = linalg.matmul ins(%a, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // B
  %c = linalg.matmul ins(%b, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // C
  %d = linalg.matmul ins(%c, %v : tensor<16x16xf32>, tensor<16x24xf32>) outs(%p : tensor<16x24xf32>) -> tensor<16x24xf32>  // D
  return %d : tensor<16x24xf32>
}
