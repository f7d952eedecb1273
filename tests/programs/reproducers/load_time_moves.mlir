// made of a global when the module is loaded: counted positions, a transpose behind a sine; a row is updated by a kernel, and its position copied to the host
// @run r --function=main --input=16x64xf32=2 --input=i32=3
module {
  util.global private @w = dense<0.5> : tensor<64x64xf32>
  util.global private mutable @kv = dense<0.0> : tensor<16x64xf32>
  func.func @main(%x: tensor<16x64xf32>, %pos: tensor<i32>) -> (tensor<16x64xf32>, tensor<64x64xf32>, tensor<16x64xf32>) {
    %w = util.global.load @w : tensor<64x64xf32>
    %i = stablehlo.iota dim = 0 : tensor<64x64xf32>
    %wi = stablehlo.multiply %w, %i : tensor<64x64xf32>
    %we = stablehlo.exponential %wi : tensor<64x64xf32>
    %wt = stablehlo.transpose %we, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %d = stablehlo.dot_general %x, %wt, contracting_dims = [1] x [0] : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
    %kv = util.global.load @kv : tensor<16x64xf32>
    %row = stablehlo.slice %d [0:1, 0:64] : (tensor<16x64xf32>) -> tensor<1x64xf32>
    %z = stablehlo.constant dense<0> : tensor<i32>
    %kv2 = stablehlo.dynamic_update_slice %kv, %row, %pos, %z : (tensor<16x64xf32>, tensor<1x64xf32>, tensor<i32>, tensor<i32>) -> tensor<16x64xf32>
    util.global.store %kv2, @kv : tensor<16x64xf32>
    %s = stablehlo.sine %wt : tensor<64x64xf32>
    %q = stablehlo.add %kv2, %x : tensor<16x64xf32>
    return %q, %s, %d : tensor<16x64xf32>, tensor<64x64xf32>, tensor<16x64xf32>
  }
}
