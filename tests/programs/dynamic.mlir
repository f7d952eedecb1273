// Command buffers of dynamic shapes are made anew on each call, with ids that say nothing.
func.func @chain(%x: tensor<?x16xf32>, %w: tensor<16x16xf32>, %o: tensor<?x16xf32>) -> tensor<?x16xf32> {
  %a = linalg.matmul ins(%x, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // A
  %b = linalg.matmul ins(%a, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // B
  return %b : tensor<?x16xf32>
}

func.func @pair(%x: tensor<?x16xf32>, %w: tensor<16x16xf32>, %o: tensor<?x16xf32>, %which: i32) -> tensor<?x16xf32> {
  %c0 = arith.constant 0 : i32
  %is = arith.cmpi eq, %which, %c0 : i32
  %y = scf.if %is -> (tensor<?x16xf32>) {
    %c = linalg.matmul ins(%x, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // C
    scf.yield %c : tensor<?x16xf32>
  } else {
    %d = linalg.matmul ins(%x, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // D
    scf.yield %d : tensor<?x16xf32>
  }
  return %y : tensor<?x16xf32>
}

func.func @looped(%x: tensor<?x16xf32>, %w: tensor<16x16xf32>, %o: tensor<?x16xf32>, %trips: i32) -> tensor<?x16xf32> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %e = linalg.matmul ins(%x, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // E
  %result = scf.for %i = %c0 to %trips step %c1 iter_args(%y = %e) -> (tensor<?x16xf32>) : i32 {
    %f = linalg.matmul ins(%y, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // F
    scf.yield %f : tensor<?x16xf32>
  }
  %g = linalg.matmul ins(%result, %w : tensor<?x16xf32>, tensor<16x16xf32>) outs(%o : tensor<?x16xf32>) -> tensor<?x16xf32>  // G
  return %g : tensor<?x16xf32>
}

func.func @alike(%x: tensor<?x16xf32>, %y: tensor<?x16xf32>, %trips: i32) -> tensor<?x16xf32> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %h = arith.mulf %x, %y : tensor<?x16xf32>  // H
  %result = scf.for %i = %c0 to %trips step %c1 iter_args(%z = %h) -> (tensor<?x16xf32>) : i32 {
    %n = arith.mulf %z, %y : tensor<?x16xf32>  // N
    scf.yield %n : tensor<?x16xf32>
  }
  %p = arith.mulf %result, %y : tensor<?x16xf32>  // P
  return %p : tensor<?x16xf32>
}

func.func @unclear(%x: tensor<?x16xf32>, %y: tensor<?x16xf32>, %trips: i32, %more: i32) -> tensor<?x16xf32> {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %first = scf.for %i = %c0 to %trips step %c1 iter_args(%z = %x) -> (tensor<?x16xf32>) : i32 {
    %q = arith.mulf %z, %y : tensor<?x16xf32>  // Q
    scf.yield %q : tensor<?x16xf32>
  }
  %second = scf.for %i = %c0 to %more step %c1 iter_args(%z = %first) -> (tensor<?x16xf32>) : i32 {
    %r = arith.mulf %z, %y : tensor<?x16xf32>  // R
    scf.yield %r : tensor<?x16xf32>
  }
  return %second : tensor<?x16xf32>
}
