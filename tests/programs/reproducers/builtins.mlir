// pads and constants of 64-bit elements, and of few bytes: kernels that the compiler adds
func.func @main(%x: tensor<7x5xi64>, %y: tensor<13xi8>, %i: tensor<i64>) -> (tensor<9x5xi64>, tensor<40xi64>, tensor<37xi8>, tensor<11xf64>, tensor<3x5xi64>, tensor<29xi8>) {
  %c = stablehlo.constant dense<77> : tensor<i64>
  %p = stablehlo.pad %x, %c, low = [1, 0], high = [1, 0], interior = [0, 0] : (tensor<7x5xi64>, tensor<i64>) -> tensor<9x5xi64>
  %z = stablehlo.constant dense<4294967299> : tensor<40xi64>
  %c8 = stablehlo.constant dense<3> : tensor<i8>
  %q = stablehlo.pad %y, %c8, low = [11], high = [13], interior = [0] : (tensor<13xi8>, tensor<i8>) -> tensor<37xi8>
  %f = stablehlo.constant dense<2.5> : tensor<11xf64>
  %b = stablehlo.broadcast_in_dim %i, dims = [] : (tensor<i64>) -> tensor<3x5xi64>
  %d8 = stablehlo.constant dense<5> : tensor<16xi8>
  %cc = stablehlo.concatenate %y, %d8, dim = 0 : (tensor<13xi8>, tensor<16xi8>) -> tensor<29xi8>
  return %p, %z, %q, %f, %b, %cc : tensor<9x5xi64>, tensor<40xi64>, tensor<37xi8>, tensor<11xf64>, tensor<3x5xi64>, tensor<29xi8>
}
