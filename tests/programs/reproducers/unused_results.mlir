// a function returns what none of its callers uses, and takes what it does not use itself
// @run r --function=main --input=64x64xf32=2 --input=64x64xf32=1 --input=i32=2
func.func private @two(%x: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %a = stablehlo.exponential %x : tensor<64x64xf32>
  %b = stablehlo.sine %x : tensor<64x64xf32>
  return %a, %b : tensor<64x64xf32>, tensor<64x64xf32>
}
func.func private @unusedarg(%x: tensor<64x64xf32>, %y: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %a = stablehlo.sqrt %x : tensor<64x64xf32>
  return %a : tensor<64x64xf32>
}
func.func @main(%x: tensor<64x64xf32>, %y: tensor<64x64xf32>, %n: tensor<i32>) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<i32>) {
  %z = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %c:2 = call @two(%x) : (tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>)
  %k = stablehlo.cosine %y : tensor<64x64xf32>
  %u = call @unusedarg(%y, %k) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %init = stablehlo.rsqrt %y : tensor<64x64xf32>
  %l:2 = stablehlo.while(%i = %z, %p = %init) : tensor<i32>, tensor<64x64xf32>
  cond {
    %lt = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %lt : tensor<i1>
  } do {
    %ni = stablehlo.add %i, %one : tensor<i32>
    %np = stablehlo.negate %p : tensor<64x64xf32>
    stablehlo.return %ni, %np : tensor<i32>, tensor<64x64xf32>
  }
  return %c#0, %u, %l#0 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<i32>
}
