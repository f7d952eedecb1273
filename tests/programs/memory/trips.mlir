func.func @main(%x: tensor<?x48xf32>, %w: tensor<48x48xf32>, %n: index) -> tensor<?x48xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %rows = tensor.dim %x, %c0 : tensor<?x48xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%h = %x) -> (tensor<?x48xf32>) {
    %e = tensor.empty(%rows) : tensor<?x48xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x48xf32>) -> tensor<?x48xf32>
    %m = linalg.matmul ins(%h, %w : tensor<?x48xf32>, tensor<48x48xf32>) outs(%f : tensor<?x48xf32>) -> tensor<?x48xf32>
    scf.yield %m : tensor<?x48xf32>
  }
  return %r : tensor<?x48xf32>
}
