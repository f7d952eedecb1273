// A product with a sparse matrix in rows (CSR), a scaled sum, and a scalar product.
func.func @kernel(%starts: memref<513xindex>, %columns: memref<8192xindex>, %values: memref<8192xf32>, %x: memref<512xf32>,
                %y: memref<512xf32>, %z: memref<512xf32>, %dot: memref<f32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %c512 = arith.constant 512 : index
  %zero = arith.constant 0.0 : f32
  %factor = arith.constant 1.5009765625 : f32
  scf.for %row = %c0 to %c512 step %c1 {
    %first = arith.muli %row, %c16 : index
    %last = arith.addi %first, %c16 : index
    %sum = scf.for %place = %first to %last step %c1 iter_args(%partial = %zero) -> f32 {
      %column = memref.load %columns[%place] : memref<8192xindex>
      %value = memref.load %values[%place] : memref<8192xf32>
      %factor_of_x = memref.load %x[%column] : memref<512xf32>
      %product = arith.mulf %value, %factor_of_x : f32
      %next = arith.addf %partial, %product : f32
      scf.yield %next : f32
    }
    memref.store %sum, %y[%row] : memref<512xf32>
  }
  scf.for %i = %c0 to %c512 step %c1 {
    %own = memref.load %y[%i] : memref<512xf32>
    %other = memref.load %z[%i] : memref<512xf32>
    %scaled = arith.mulf %own, %factor : f32
    %added = arith.addf %scaled, %other : f32
    memref.store %added, %z[%i] : memref<512xf32>
  }
  %total = scf.for %i = %c0 to %c512 step %c1 iter_args(%partial = %zero) -> f32 {
    %left = memref.load %y[%i] : memref<512xf32>
    %right = memref.load %z[%i] : memref<512xf32>
    %product = arith.mulf %left, %right : f32
    %next = arith.addf %partial, %product : f32
    scf.yield %next : f32
  }
  memref.store %total, %dot[] : memref<f32>
  return
}
