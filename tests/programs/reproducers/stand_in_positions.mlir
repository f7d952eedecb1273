// top_k is lowered with positions along a row, of which nothing comes; those that the model counts for its argmax are merged with them
// @run r --function=main --input=16x1024xf32=2
func.func @main(%x: tensor<16x1024xf32>) -> (tensor<16x5xf32>, tensor<16x5xi32>, tensor<16xi32>) {
  %v, %i = chlo.top_k(%x, k = 5) : tensor<16x1024xf32> -> (tensor<16x5xf32>, tensor<16x5xi32>)
  %io = stablehlo.iota dim = 1 : tensor<16x1024xi32>
  %ninf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zi = stablehlo.constant dense<0> : tensor<i32>
  %am:2 = stablehlo.reduce(%x init: %ninf), (%io init: %zi) across dimensions = [1] : (tensor<16x1024xf32>, tensor<16x1024xi32>, tensor<f32>, tensor<i32>) -> (tensor<16xf32>, tensor<16xi32>)
   reducer(%a: tensor<f32>, %b: tensor<f32>) (%ai: tensor<i32>, %bi: tensor<i32>) {
     %gt = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
     %s1 = stablehlo.select %gt, %a, %b : tensor<i1>, tensor<f32>
     %t = stablehlo.select %gt, %ai, %bi : tensor<i1>, tensor<i32>
     stablehlo.return %s1, %t : tensor<f32>, tensor<i32>
   }
  return %v, %i, %am#1 : tensor<16x5xf32>, tensor<16x5xi32>, tensor<16xi32>
}
