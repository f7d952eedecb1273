// Functions of several kinds: two outputs, sizes that are not known, none but constants, a name that could steer a terminal.
func.func @mix(%x: tensor<2x3xf32>, %n: i32) -> (tensor<2x3xf32>, i32) {
  %square = arith.mulf %x, %x : tensor<2x3xf32>
  %one = arith.constant dense<1.0> : tensor<2x3xf32>
  %sum = arith.addf %square, %one : tensor<2x3xf32>
  %twice = arith.addi %n, %n : i32
  return %sum, %twice : tensor<2x3xf32>, i32
}

func.func @double(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %y = arith.addf %x, %x : tensor<?x4xf32>
  return %y : tensor<?x4xf32>
}

func.func @constants() -> (tensor<4xbf16>, tensor<3xi1>, f32, tensor<0x4xf32>, tensor<2xi64>, tensor<2xf16>) {
  %0 = arith.constant dense<1.5> : tensor<4xbf16>
  %1 = arith.constant dense<[true, false, true]> : tensor<3xi1>
  %2 = arith.constant 2.5 : f32
  %3 = arith.constant dense<1.0> : tensor<0x4xf32>
  %4 = arith.constant dense<[9007199254740993, -1]> : tensor<2xi64>
  %5 = arith.constant dense<[0.5, 0x7E00]> : tensor<2xf16>
  return %0, %1, %2, %3, %4, %5 : tensor<4xbf16>, tensor<3xi1>, f32, tensor<0x4xf32>, tensor<2xi64>, tensor<2xf16>
}

func.func @narrow(%x: tensor<4xi4>) -> tensor<4xi4> {
  return %x : tensor<4xi4>
}

func.func @"steers\1B[31m"() -> i32 {
  %0 = arith.constant 7 : i32
  return %0 : i32
}
