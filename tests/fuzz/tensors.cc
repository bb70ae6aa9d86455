#include <algorithm>

#include "proto/codec/codec.h"
#include "tests/fuzz/codec_payload.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {
namespace {

constexpr size_t kCountMax =
    1 << 16;  // numbers that are decoded: a peer decodes what its plan says, and no more

void expect_same_header(const proto::TensorHeader& header, std::span<const std::byte> encoded) {
  WEFT_CHECK(std::ranges::equal(proto::encode_header(header), encoded));
}

}  // namespace

void tensors(std::span<const std::byte> bytes) {
  Input input(bytes);
  switch (input.byte() % 4) {
    case 0: {
      const auto payload = input.rest();
      const auto frame = proto::decode_tensor(payload);
      if (!frame) return;
      expect_same_header(frame->header, payload.first(payload.size() - frame->bytes.size()));
      const auto count = static_cast<size_t>(frame->header.spec.element_count());
      if (frame->header.spec.dtype == dag::DType::F32 && count <= kCountMax)
        decode_payload(frame->header.codec, frame->bytes, count);
      return;
    }
    case 1: {
      const size_t size = input.number(4);
      const auto first = input.take(std::min(size, proto::kTensorHeaderSizeMax));
      if (first.size() < std::min(size, proto::kTensorHeaderSizeMax)) return;
      const auto head = proto::decode_tensor_head(first, size);
      if (head) expect_same_header(head->header, first.first(head->size));
      return;
    }
    case 2: {
      const size_t size = input.number(4);
      const auto first = input.take(std::min(size, proto::kPieceHeadSizeMax));
      if (first.size() < std::min(size, proto::kPieceHeadSizeMax)) return;
      const auto piece = proto::decode_piece_head(first, size);
      if (!piece) return;
      const auto& head = piece->head;
      WEFT_CHECK(piece->head_size + head.piece_size() == size && head.piece_size() <= proto::kPieceSize);
      WEFT_CHECK(head.offset + head.piece_size() <= head.size);
      const auto again =
          proto::encode_piece_head(head.number, head.offset, head.size, proto::encode_header(head.header));
      WEFT_CHECK(std::ranges::equal(again, first.first(piece->head_size)));
      return;
    }
    case 3: {
      const auto payload = input.rest();
      const auto chunk = proto::decode_chunk(payload);
      if (chunk) WEFT_CHECK(chunk->bytes.size() <= std::min(payload.size(), proto::kChunkSizeMax));
      return;
    }
  }
}

}  // namespace weft::fuzz
