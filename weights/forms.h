// A tensor that lies in a file of weights, and the forms in which a job may have it. A job computes in
// float32 whatever the numbers of published weights are, and an exporter exchanges the axes of the matrix of
// a linear layer.
#pragma once

#include <cstdint>
#include <stop_token>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "dag/tensor.h"
#include "data/file.h"
#include "data/npz_writer.h"

namespace weft::weights {

struct StoredTensor {
  dag::TensorSpec spec;
  uint64_t offset = 0;  // of its bytes in the file
  bool operator==(const StoredTensor&) const = default;
};

// Widened: numbers of half precision as float32. Transposed: a matrix with its axes exchanged.
enum class Form : uint8_t { AsStored = 0, Widened = 1, Transposed = 2, TransposedWidened = 3 };

// Those that differ: a matrix of half precision has all four, a vector of float32 one.
std::vector<Form> forms_of(const dag::TensorSpec& spec);
uint64_t bytes_of(const dag::TensorSpec& spec, Form form);

// Hands on the bytes of that form, in order and in pieces of at most 1 MiB. Takes up to about 64 MiB, or what
// two columns of the matrix take where that is more. Errors: as data::File; ResourceExhausted; what the sink
// says.
Status read_form(const data::File& file, const StoredTensor& tensor, Form form, const data::ByteSink& sink);

// SHA-256 of each of forms_of(). The file is read at most twice. Errors: as above; Cancelled.
Result<std::vector<Digest>> digests_of(const data::File& file, const StoredTensor& tensor,
                                       const std::stop_token& stop);

}  // namespace weft::weights
