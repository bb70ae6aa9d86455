// Internal to dag/onnx: numbers of fields of onnx.proto, for those who walk the wire format.
#pragma once

#include <cstdint>

namespace weft::onnx::fields {

inline constexpr uint32_t kModelGraph = 7;
inline constexpr uint32_t kGraphInitializer = 5;
inline constexpr uint32_t kTensorSegment = 3;
inline constexpr uint32_t kTensorFloatData = 4;
inline constexpr uint32_t kTensorInt32Data = 5;
inline constexpr uint32_t kTensorStringData = 6;
inline constexpr uint32_t kTensorInt64Data = 7;
inline constexpr uint32_t kTensorRawData = 9;
inline constexpr uint32_t kTensorDoubleData = 10;
inline constexpr uint32_t kTensorUint64Data = 11;
inline constexpr uint32_t kTensorExternalData = 13;
inline constexpr uint32_t kEntryKey = 1;
inline constexpr uint32_t kEntryValue = 2;

// Wire types.
inline constexpr uint32_t kDelimited = 2;

}  // namespace weft::onnx::fields
