// Whether a decoder does what the whole window does: asked once, when a model is loaded.
#pragma once

#include <string>

#include "base/result.h"
#include "serve/decoder.h"

namespace weft::serve {

// Computes the first positions of a random sequence in pieces of several sizes, and the whole window twice,
// with other tokens behind those positions. `exact`: bits are compared; else numbers, to a thousandth of the
// largest. Errors: Internal when the decoder differs, with by how much; Unsupported when the window's own
// rows hang on later tokens; what the decoders say. `window` has the same model, of equal context.
Status verify(Decoder& decoder, Decoder& window, bool exact);

}  // namespace weft::serve
