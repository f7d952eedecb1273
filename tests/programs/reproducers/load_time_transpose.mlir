// a transpose of what is made when the module is loaded is read the other way by a product
// @run r --function=main --input=16x64xf32=2
module {
  util.global private @w = dense<0.5> : tensor<64x96xf32>
  func.func @main(%x: tensor<16x64xf32>) -> (tensor<16x96xf32>, tensor<96x64xf32>) {
    %w = util.global.load @w : tensor<64x96xf32>
    %e = stablehlo.exponential %w : tensor<64x96xf32>
    %wt = stablehlo.transpose %e, dims = [1, 0] : (tensor<64x96xf32>) -> tensor<96x64xf32>
    %d = stablehlo.dot_general %x, %wt, contracting_dims = [1] x [1] : (tensor<16x64xf32>, tensor<96x64xf32>) -> tensor<16x96xf32>
    %s = stablehlo.sine %wt : tensor<96x64xf32>
    return %d, %s : tensor<16x96xf32>, tensor<96x64xf32>
  }
}
