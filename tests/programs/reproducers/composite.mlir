// a composite stands for its function: it is called twice, and is fused into the product once
// @run r --function=main --input=64x128xf32=2 --input=128x128xf32=1
module {
  func.func private @impl(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
    %m = stablehlo.tanh %x : tensor<64x128xf32>
    return %m : tensor<64x128xf32>
  }
  func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x128xf32>) -> tensor<64x128xf32> {
    %g = stablehlo.composite "my.act" %x {decomposition = @impl} : (tensor<64x128xf32>) -> tensor<64x128xf32>
    %d = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<64x128xf32>, tensor<128x128xf32>) -> tensor<64x128xf32>
    %h = stablehlo.composite "my.act" %d {decomposition = @impl} : (tensor<64x128xf32>) -> tensor<64x128xf32>
    return %h : tensor<64x128xf32>
  }
}
