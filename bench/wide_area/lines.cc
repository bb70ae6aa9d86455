#include "bench/wide_area/lines.h"

#include "proto/codec/codec.h"

namespace weft::bench {

namespace {
// What a frame and TLS add: net/frame.h, net/tls.h, RFC 8446.
constexpr size_t kFrameHeader = 5, kTlsRecord = 16 << 10, kTlsRecordOverhead = 22;
}  // namespace

size_t wire_bytes(const proto::TensorHeader& header) {
  const size_t frame = kFrameHeader + proto::encode_header(header).size() +
                       static_cast<size_t>(proto::payload_bytes(header.spec, header.codec).value);
  return frame + (frame + kTlsRecord - 1) / kTlsRecord * kTlsRecordOverhead;
}

}  // namespace weft::bench
