func.func @counted(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %o: tensor<16x16xf32>, %trips: i32, %inner: i32) -> tensor<16x16xf32> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %first = linalg.matmul ins(%x, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // A
  %result = scf.for %i = %c0 to %trips step %c1 iter_args(%y = %first) -> (tensor<16x16xf32>) : i32 {
    %next = linalg.matmul ins(%y, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // B
    %deep = scf.for %j = %c0 to %inner step %c1 iter_args(%z = %next) -> (tensor<16x16xf32>) : i32 {
      %sum = arith.addf %z, %w : tensor<16x16xf32>  // C
      scf.yield %sum : tensor<16x16xf32>
    }
    scf.yield %deep : tensor<16x16xf32>
  }
  return %result : tensor<16x16xf32>
}

func.func @until(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %o: tensor<16x16xf32>, %limit: i32) -> tensor<16x16xf32> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %count, %result = scf.while (%i = %c0, %y = %x) : (i32, tensor<16x16xf32>) -> (i32, tensor<16x16xf32>) {
    %more = arith.cmpi slt, %i, %limit : i32
    scf.condition(%more) %i, %y : i32, tensor<16x16xf32>
  } do {
  ^body(%i: i32, %y: tensor<16x16xf32>):
    %next = linalg.matmul ins(%y, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // D
    %again = linalg.matmul ins(%next, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // E
    %up = arith.addi %i, %c1 : i32
    scf.yield %up, %again : i32, tensor<16x16xf32>
  }
  return %result : tensor<16x16xf32>
}
