// rotation by halves, as rotary position embeddings have it: the compiler makes one loop of it that has no location
// @run r --function=main --input=512x256xf32=2 --input=512x256xf32=1
func.func @main(%x: tensor<512x256xf32>, %y: tensor<512x256xf32>) -> tensor<512x256xf32> {
  %a = stablehlo.slice %x [0:512, 0:128] : (tensor<512x256xf32>) -> tensor<512x128xf32>
  %c = stablehlo.slice %x [0:512, 128:256] : (tensor<512x256xf32>) -> tensor<512x128xf32>
  %n = stablehlo.negate %c : tensor<512x128xf32>
  %cc = stablehlo.concatenate %n, %a, dim = 1 : (tensor<512x128xf32>, tensor<512x128xf32>) -> tensor<512x256xf32>
  %m2 = stablehlo.multiply %cc, %y : tensor<512x256xf32>
  return %m2 : tensor<512x256xf32>
}
