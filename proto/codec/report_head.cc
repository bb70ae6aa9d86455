#include "proto/codec/report_head.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <iterator>

#include "proto/codec/wire.h"

namespace weft::proto {

namespace {

using google::protobuf::io::CodedInputStream;

constexpr int kReports[] = {
    wire::Envelope::kStageReadyFieldNumber,        wire::Envelope::kStageFailedFieldNumber,
    wire::Envelope::kStepReportFieldNumber,        wire::Envelope::kCheckpointReportFieldNumber,
    wire::Envelope::kEvaluationReportFieldNumber,  wire::Envelope::kPredictionReportFieldNumber,
    wire::Envelope::kStageResumedFieldNumber,      wire::Envelope::kComparisonReportFieldNumber,
    wire::Envelope::kServeProgressFieldNumber,     wire::Envelope::kReplicasLeftOutFieldNumber,
    wire::Envelope::kDifferenceRefusedFieldNumber, wire::Envelope::kMeanPieceFieldNumber,
};

}  // namespace

std::optional<ReportHead> peek_report(std::span<const std::byte> bytes) {
  // Of all of them `run` is field 1 and `plan_version` field 2, which are written first; a zero is not.
  constexpr uint32_t kMessage = 2, kRun = 1 << 3, kVersion = 2 << 3;
  const auto size = static_cast<int>(std::min<size_t>(bytes.size(), 64));
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()), size);
  const uint32_t tag = in.ReadTag();
  const bool is_report = (tag & 7) == kMessage && std::find(std::begin(kReports), std::end(kReports),
                                                            static_cast<int>(tag >> 3)) != std::end(kReports);
  uint32_t length = 0;
  if (!is_report || !in.ReadVarint32(&length)) return std::nullopt;
  ReportHead head;
  if (in.ReadTag() != kRun || !in.ReadVarint64(&head.run)) return std::nullopt;
  if (in.ReadTag() != kVersion || !in.ReadVarint32(&head.plan_version)) return std::nullopt;
  return head;
}

std::optional<ReportHead> head_of(const Message& message) {
  return std::visit(
      [](const auto& m) -> std::optional<ReportHead> {
        using T = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<T, StageReady> || std::is_same_v<T, StageFailed> ||
                      std::is_same_v<T, StepReport> || std::is_same_v<T, CheckpointReport> ||
                      std::is_same_v<T, EvaluationReport> || std::is_same_v<T, PredictionReport> ||
                      std::is_same_v<T, StageResumed> || std::is_same_v<T, ComparisonReport> ||
                      std::is_same_v<T, ServeProgress> || std::is_same_v<T, ReplicasLeftOut> ||
                      std::is_same_v<T, DifferenceRefused> || std::is_same_v<T, MeanPiece>)
          return ReportHead{m.run, m.plan_version};
        else
          return std::nullopt;
      },
      static_cast<const AnyMessage&>(message));
}

}  // namespace weft::proto
