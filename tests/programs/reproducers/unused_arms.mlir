// of the two results of a branch nobody uses the second
// @run r --function=main --input=64x64xf32=2 --input=i1=00
func.func @main(%x: tensor<64x64xf32>, %p: tensor<i1>) -> tensor<64x64xf32> {
  %c:2 = "stablehlo.if"(%p) ({
    %a = stablehlo.exponential %x : tensor<64x64xf32>
    %b = stablehlo.sine %x : tensor<64x64xf32>
    stablehlo.return %a, %b : tensor<64x64xf32>, tensor<64x64xf32>
  }, {
    %a = stablehlo.tanh %x : tensor<64x64xf32>
    %b = stablehlo.log %x : tensor<64x64xf32>
    stablehlo.return %a, %b : tensor<64x64xf32>, tensor<64x64xf32>
  }) : (tensor<i1>) -> (tensor<64x64xf32>, tensor<64x64xf32>)
  return %c#0 : tensor<64x64xf32>
}
