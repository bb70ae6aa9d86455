// How much a message may hold. proto/codec/weft.proto names them field by field.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::proto {

// Bytes of texts.
inline constexpr size_t kNameMax = 256;
inline constexpr size_t kSymbolMax = 4096;
inline constexpr size_t kTextMax = 64 << 10;
inline constexpr size_t kJobFileMax = 1 << 20;

// Entries of lists.
inline constexpr size_t kAddressesMax = 32;
inline constexpr size_t kExcludedMax = 256;  // peers, by a job
inline constexpr size_t kStagesMax = 1024;
inline constexpr size_t kReplicasMax = 1024;  // of a stage
inline constexpr size_t kListMax = 100'000;
inline constexpr size_t kShortListMax = 4096;
inline constexpr size_t kLossesMax = 1'000'000;
inline constexpr size_t kDimsMax = 16;
inline constexpr size_t kIntegersMax = 1024;
inline constexpr size_t kEmptyStepsMax = 1 << 16;
inline constexpr size_t kReadsMax = size_t{1} << 24;  // of a sample's labels

// Of a graph.
inline constexpr size_t kOpsMax = 100'000;
inline constexpr size_t kInitializersMax = 20'000;             // the builder looks each name up among all
inline constexpr size_t kConstantsSizeMax = size_t{64} << 20;  // bytes, all together
inline constexpr size_t kGraphSizeMax = size_t{80} << 20;      // bytes of encode_graph()
inline constexpr int64_t kElementsMax = int64_t{1} << 44;      // of all values together

inline constexpr int64_t kBytesMax = int64_t{1} << 60;  // of a memory
inline constexpr uint64_t kBlobSizeMax = uint64_t{1} << 43;
inline constexpr uint32_t kBatchSizeMax = 1u << 30;
inline constexpr uint32_t kInFlightMax = 65536;
inline constexpr uint32_t kThreadsMax = 1024;                  // of a device
inline constexpr int kArithmeticMax = 64;                      // that a device says it has
inline constexpr uint32_t kServeRowsMax = 4096;                // of a pass
inline constexpr size_t kSequenceMax = 1 << 20;                // tokens of a request
inline constexpr uint32_t kAlternativesMax = 64;               // told with a token
inline constexpr uint64_t kProbeBytesMax = uint64_t{1} << 30;  // that a probe may be told to send

// What protobuf would make of the bytes: see proto/codec/scan.h.
inline constexpr size_t kScanOverheadMax = size_t{64} << 20;  // bytes beyond texts and tensors
inline constexpr size_t kUnknownFieldsMax = 256;              // of a later minor version
inline constexpr int kNestingMax = 12;

}  // namespace weft::proto
