// The model of the documents' examples: two blocks with a matrix product each, as JAX names their scopes.
// `main` takes rows of 16 numbers, of which there may be any number, and the weights of both blocks.
#line10 = loc("model.py":10:8)
#line11 = loc("model.py":11:8)
#line14 = loc("model.py":14:8)
#line15 = loc("model.py":15:8)
#product = loc("jit(main)/h0/attn/dot_general"(#line10))
#tanh = loc("jit(main)/h0/attn/tanh"(#line11))
#first = loc("jit(main)/h0/attn/add"(#line11))
#second = loc("jit(main)/h0/ffn/dot_general"(#line14))
#maximum = loc("jit(main)/h0/ffn/max"(#line15))
#sum = loc("jit(main)/h0/ffn/add"(#line15))
module @jit_main {
  func.func public @main(%x: tensor<?x16xf32>, %weights: tensor<16x16xf32>) -> tensor<?x16xf32> {
    %product = stablehlo.dot_general %x, %weights,
        contracting_dims = [1] x [0],
        precision = [DEFAULT, DEFAULT]
        : (tensor<?x16xf32>, tensor<16x16xf32>)
        -> tensor<?x16xf32>
        loc(#product)
    %tanh = stablehlo.tanh %product : tensor<?x16xf32> loc(#tanh)
    %first = stablehlo.add %tanh, %x : tensor<?x16xf32> loc(#first)

    // The second block.
    %second = stablehlo.dot_general %first, %weights,
        contracting_dims = [1] x [0],
        precision = [DEFAULT, DEFAULT]
        : (tensor<?x16xf32>, tensor<16x16xf32>)
        -> tensor<?x16xf32>
        loc(#second)
    %maximum = stablehlo.maximum %second, %first : tensor<?x16xf32> loc(#maximum)
    %sum = stablehlo.add %maximum, %x : tensor<?x16xf32> loc(#sum)
    %third = stablehlo.dot_general %sum, %weights, contracting_dims = [1] x [0]
        : (tensor<?x16xf32>, tensor<16x16xf32>) -> tensor<?x16xf32> loc(#second)
    %fourth = stablehlo.dot_general %third, %weights, contracting_dims = [1] x [0]
        : (tensor<?x16xf32>, tensor<16x16xf32>) -> tensor<?x16xf32> loc(#second)
    return %fourth : tensor<?x16xf32>
  }
}
