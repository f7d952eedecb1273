// A function that is not inlined is called from two functions, and in a loop.
util.func private @layer(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %o: tensor<16x16xf32>) -> tensor<16x16xf32> attributes {inlining_policy = #util.inline.never} {
  %y = linalg.matmul ins(%x, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // A
  %z = linalg.matmul ins(%y, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // B
  util.return %z : tensor<16x16xf32>
}

util.func public @twice(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %o: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %a = util.call @layer(%x, %w, %o) : (tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %b = util.call @layer(%a, %w, %o) : (tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %c = linalg.matmul ins(%b, %w : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // C
  util.return %c : tensor<16x16xf32>
}

util.func public @often(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %o: tensor<16x16xf32>, %trips: i32) -> tensor<16x16xf32> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %result = scf.for %i = %c0 to %trips step %c1 iter_args(%y = %x) -> (tensor<16x16xf32>) : i32 {
    %z = util.call @layer(%y, %w, %o) : (tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
    scf.yield %z : tensor<16x16xf32>
  }
  util.return %result : tensor<16x16xf32>
}
