#include "serve/decoder.h"

namespace weft::serve {

Status Decoder::check(const Piece& piece) const {
  for (const int64_t token : piece.tokens)
    if (token < 0 || token >= vocabulary())
      return fail(ErrorCode::OutOfRange,
                  "token " + std::to_string(token) + " is none of " + std::to_string(vocabulary()));
  const int64_t length = piece.sequence->length() + static_cast<int64_t>(piece.tokens.size());
  if (length > context())
    return fail(ErrorCode::OutOfRange, "a sequence of " + std::to_string(length) +
                                           " positions is beyond the model's " + std::to_string(context()));
  return {};
}

bool Decoder::make_room(Sequence&, int64_t, int64_t, int64_t) { return false; }

}  // namespace weft::serve
