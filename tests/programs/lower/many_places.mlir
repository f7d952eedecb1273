// An op that ends in several loops, one in a loop of the model's own, one that is dead, and two that are equal.
func.func private @scale(%x: memref<16xf32>, %k: f32) {
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]} outs(%x : memref<16xf32>) {
  ^bb0(%a: f32):
    %s = arith.mulf %a, %k : f32
    linalg.yield %s : f32
  }
  return
}
func.func @main(%x: memref<16xf32>, %y: memref<16xf32>, %a: memref<8x8xf32>, %c: memref<8x8xf32>, %n: index) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %k = arith.constant 3.0 : f32
  call @scale(%x, %k) : (memref<16xf32>, f32) -> ()
  call @scale(%y, %k) : (memref<16xf32>, f32) -> ()
  scf.for %i = %c0 to %n step %c1 {
    linalg.matmul ins(%a, %a : memref<8x8xf32>, memref<8x8xf32>) outs(%c : memref<8x8xf32>)
  }
  %dead = arith.addf %k, %k : f32
  %v = memref.load %x[%c0] : memref<16xf32>
  %one = math.exp %v : f32
  %two = math.exp %v : f32
  %sum = arith.addf %one, %two : f32
  return %sum : f32
}
