// branches between values that are there anyhow become selects in kernels; one decides on the host; a case of one arm decides nothing
// @run r --function=main --input=64x64xf32=2 --input=64x64xf32=1 --input=i1=01 --input=i32=0
func.func @main(%x: tensor<64x64xf32>, %y: tensor<64x64xf32>, %p: tensor<i1>, %k: tensor<i32>) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) {
  %c = "stablehlo.if"(%p) ({
    stablehlo.return %x : tensor<64x64xf32>
  }, {
    stablehlo.return %y : tensor<64x64xf32>
  }) : (tensor<i1>) -> tensor<64x64xf32>
  %s = stablehlo.exponential %c : tensor<64x64xf32>
  %c2 = "stablehlo.if"(%p) ({
    %a = stablehlo.sine %x : tensor<64x64xf32>
    stablehlo.return %a : tensor<64x64xf32>
  }, {
    %a = stablehlo.sine %x : tensor<64x64xf32>
    stablehlo.return %a : tensor<64x64xf32>
  }) : (tensor<i1>) -> tensor<64x64xf32>
  %o = stablehlo.sine %x : tensor<64x64xf32>
  %cs = "stablehlo.case"(%k) ({
    %a = stablehlo.tanh %x : tensor<64x64xf32>
    stablehlo.return %a : tensor<64x64xf32>
  }) : (tensor<i32>) -> tensor<64x64xf32>
  %pb = stablehlo.broadcast_in_dim %p, dims = [] : (tensor<i1>) -> tensor<64x64xi1>
  %sel = stablehlo.select %pb, %s, %cs : tensor<64x64xi1>, tensor<64x64xf32>
  return %s, %c2, %o, %sel : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
}
