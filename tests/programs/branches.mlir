// Both arms run the same kernel; which arm of which trip is taken is known from the arguments.
func.func @either(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %o: tensor<16x16xf32>, %which: i32) -> tensor<16x16xf32> {
  %c0 = arith.constant 0 : i32
  %is = arith.cmpi eq, %which, %c0 : i32
  %y = scf.if %is -> (tensor<16x16xf32>) {
    %a = linalg.matmul ins(%x, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // A
    scf.yield %a : tensor<16x16xf32>
  } else {
    %b = linalg.matmul ins(%x, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // B
    scf.yield %b : tensor<16x16xf32>
  }
  %c = arith.addf %y, %w : tensor<16x16xf32>  // C
  return %c : tensor<16x16xf32>
}

func.func @alternating(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %o: tensor<16x16xf32>, %trips: i32) -> tensor<16x16xf32> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c3 = arith.constant 3 : i32
  %result = scf.for %i = %c0 to %trips step %c1 iter_args(%y = %x) -> (tensor<16x16xf32>) : i32 {
    %rest = arith.remui %i, %c3 : i32
    %is = arith.cmpi eq, %rest, %c0 : i32
    %z = scf.if %is -> (tensor<16x16xf32>) {
      %d = linalg.matmul ins(%y, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // D
      scf.yield %d : tensor<16x16xf32>
    } else {
      %e = linalg.matmul ins(%y, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // E
      scf.yield %e : tensor<16x16xf32>
    }
    scf.yield %z : tensor<16x16xf32>
  }
  return %result : tensor<16x16xf32>
}
