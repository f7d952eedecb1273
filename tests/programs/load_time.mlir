// A kernel that runs at load time and in the call (exp), and one that runs at load time only (the sums of rows).
util.global private @table : tensor<256x256xf32>
util.global private @sums : tensor<256xf32>
util.initializer {
  %c = util.unfoldable_constant dense<3.5> : tensor<256x256xf32>
  %e = tensor.empty() : tensor<256x256xf32>
  %x = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%c : tensor<256x256xf32>) outs(%e : tensor<256x256xf32>) {
    ^bb0(%p: f32, %o: f32):
      %y = math.exp %p : f32
      linalg.yield %y : f32
  } -> tensor<256x256xf32>
  util.global.store %x, @table : tensor<256x256xf32>
  %zero = arith.constant 0.0 : f32
  %row = tensor.empty() : tensor<256xf32>
  %f = linalg.fill ins(%zero : f32) outs(%row : tensor<256xf32>) -> tensor<256xf32>
  %d = util.unfoldable_constant dense<2.5> : tensor<256x256xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%d : tensor<256x256xf32>) outs(%f : tensor<256xf32>) {
    ^bb0(%p: f32, %o: f32):
      %y = arith.addf %p, %o : f32
      linalg.yield %y : f32
  } -> tensor<256xf32>
  util.global.store %s, @sums : tensor<256xf32>
  util.return
}
func.func @main(%a: tensor<256x256xf32>) -> (tensor<256x256xf32>, tensor<256x256xf32>, tensor<256xf32>) {
  %e = tensor.empty() : tensor<256x256xf32>
  %x = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<256x256xf32>) outs(%e : tensor<256x256xf32>) {
    ^bb0(%p: f32, %o: f32):
      %y = math.exp %p : f32
      linalg.yield %y : f32
  } -> tensor<256x256xf32>
  %k = util.global.load @table : tensor<256x256xf32>
  %s = util.global.load @sums : tensor<256xf32>
  return %x, %k, %s : tensor<256x256xf32>, tensor<256x256xf32>, tensor<256xf32>
}
