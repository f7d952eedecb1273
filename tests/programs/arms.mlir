// Equal arms of a branch become one command; what stands before and behind is of the same kernel, or may be.
func.func @between(%x: tensor<?x16xf32>, %w: tensor<16x16xf32>, %o: tensor<?x16xf32>, %which: i32) -> tensor<?x16xf32> {
  %c0 = arith.constant 0 : i32
  %is = arith.cmpi eq, %which, %c0 : i32
  %a = linalg.matmul ins(%x, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // A
  %y = scf.if %is -> (tensor<?x16xf32>) {
    %c = linalg.matmul ins(%a, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // C
    scf.yield %c : tensor<?x16xf32>
  } else {
    %d = linalg.matmul ins(%a, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // D
    scf.yield %d : tensor<?x16xf32>
  }
  %e = linalg.matmul ins(%y, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // E
  return %e : tensor<?x16xf32>
}

func.func @blocks(%x: tensor<?x16xf32>, %w: tensor<16x16xf32>, %o: tensor<?x16xf32>, %which: i32) -> tensor<?x16xf32> {
  %c0 = arith.constant 0 : i32
  %is = arith.cmpi eq, %which, %c0 : i32
  %f = linalg.matmul ins(%x, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // F
  cf.cond_br %is, ^this, ^that
^this:
  %g = linalg.matmul ins(%f, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // G
  cf.br ^both(%g : tensor<?x16xf32>)
^that:
  %h = linalg.matmul ins(%f, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // H
  %i = linalg.matmul ins(%h, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // I
  cf.br ^both(%i : tensor<?x16xf32>)
^both(%y: tensor<?x16xf32>):
  %j = linalg.matmul ins(%y, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // J
  return %j : tensor<?x16xf32>
}
