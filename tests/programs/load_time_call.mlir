// A function that only an initializer calls: its kernel (exp) runs at load time. The call runs another one (tanh).
util.global private @table : tensor<256x256xf32>
util.func private @made(%a: tensor<256x256xf32>) -> tensor<256x256xf32>
    attributes {inlining_policy = #util.inline.never} {
  %e = tensor.empty() : tensor<256x256xf32>
  %x = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<256x256xf32>) outs(%e : tensor<256x256xf32>) {
    ^bb0(%p: f32, %o: f32):
      %y = math.exp %p : f32
      linalg.yield %y : f32
  } -> tensor<256x256xf32>
  util.return %x : tensor<256x256xf32>
}
util.initializer {
  %c = util.unfoldable_constant dense<0.5> : tensor<256x256xf32>
  %x = util.call @made(%c) : (tensor<256x256xf32>) -> tensor<256x256xf32>
  util.global.store %x, @table : tensor<256x256xf32>
  util.return
}
func.func @main(%a: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %k = util.global.load @table : tensor<256x256xf32>
  %e = tensor.empty() : tensor<256x256xf32>
  %x = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>,  // A
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%a, %k : tensor<256x256xf32>, tensor<256x256xf32>) outs(%e : tensor<256x256xf32>) {
    ^bb0(%p: f32, %q: f32, %o: f32):
      %t = math.tanh %p : f32
      %y = arith.addf %t, %q : f32
      linalg.yield %y : f32
  } -> tensor<256x256xf32>
  return %x : tensor<256x256xf32>
}
