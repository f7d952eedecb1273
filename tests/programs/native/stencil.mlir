// Two equal sweeps of a stencil in a function that is called twice, and the sum of squares of the result.
func.func private @sweep(%from: memref<130x130xf32>, %to: memref<130x130xf32>) {
  %quarter = arith.constant 0.2509765625 : f32
  affine.for %i = 1 to 129 {
    affine.for %j = 1 to 129 {
      %north = affine.load %from[%i - 1, %j] : memref<130x130xf32>
      %south = affine.load %from[%i + 1, %j] : memref<130x130xf32>
      %west = affine.load %from[%i, %j - 1] : memref<130x130xf32>
      %east = affine.load %from[%i, %j + 1] : memref<130x130xf32>
      %vertical = arith.addf %north, %south : f32
      %horizontal = arith.addf %west, %east : f32
      %sum = arith.addf %vertical, %horizontal : f32
      %mean = arith.mulf %sum, %quarter : f32
      affine.store %mean, %to[%i, %j] : memref<130x130xf32>
    }
  }
  return
}

func.func @kernel(%a: memref<130x130xf32>, %b: memref<130x130xf32>, %norm: memref<f32>) {
  call @sweep(%a, %b) : (memref<130x130xf32>, memref<130x130xf32>) -> ()
  call @sweep(%b, %a) : (memref<130x130xf32>, memref<130x130xf32>) -> ()
  %zero = arith.constant 0.0 : f32
  %total = affine.for %i = 0 to 130 iter_args(%outer = %zero) -> f32 {
    %row = affine.for %j = 0 to 130 iter_args(%inner = %outer) -> f32 {
      %value = affine.load %a[%i, %j] : memref<130x130xf32>
      %square = arith.mulf %value, %value : f32
      %next = arith.addf %inner, %square : f32
      affine.yield %next : f32
    }
    affine.yield %row : f32
  }
  affine.store %total, %norm[] : memref<f32>
  return
}
