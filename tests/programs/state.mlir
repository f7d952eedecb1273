util.global private mutable @state = dense<1.0> : tensor<16x16xf32>
util.global private @table = dense<0.5> : tensor<16x16xf32>
util.global private @derived : tensor<16x16xf32>
util.initializer {
  %t = util.global.load @table : tensor<16x16xf32>
  %s = util.optimization_barrier %t : tensor<16x16xf32>
  %o = util.global.load @state : tensor<16x16xf32>
  %m = linalg.matmul ins(%s, %s : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // I
  util.global.store %m, @derived : tensor<16x16xf32>
  util.return
}

util.func public @step(%x: tensor<16x16xf32>, %o: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %s = util.global.load @state : tensor<16x16xf32>
  %d = util.global.load @derived : tensor<16x16xf32>
  %a = linalg.matmul ins(%s, %x : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // A
  util.global.store %a, @state : tensor<16x16xf32>
  %b = linalg.matmul ins(%a, %d : tensor<16x16xf32>, tensor<16x16xf32>) outs(%o : tensor<16x16xf32>) -> tensor<16x16xf32>  // B
  util.return %b : tensor<16x16xf32>
}
