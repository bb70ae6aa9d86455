// The backend to compare with: every op, double precision, one thread. Storage: eight bytes an element,
// double for float dtypes and int64 for the rest, plain layout whatever is asked.
#pragma once

#include <memory>

#include "peer/backend/backend.h"

namespace weft::peer {

std::unique_ptr<Backend> make_reference_backend();

}  // namespace weft::peer
