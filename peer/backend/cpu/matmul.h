// A matrix product by blocks of our own, for whoever comes to one.
#pragma once

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

// c[M,N] = a[M,K] b[K,N], c row-major; a and b by the steps from row to row and from column to column.
struct Product {
  int64_t m, n, k;
  int64_t a_row, a_column, b_row, b_column;
};
// Where its arrays stand in the signature; bias[N]: -1 for none.
struct ProductSlots {
  int a = -1, b = -1, bias = -1, c = -1;
};

KernelResult make_product(const KernelRequest& request, const Product& product, const ProductSlots& slots);

}  // namespace weft::peer::cpu
