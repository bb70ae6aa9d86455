// The curves of a run as a table beside its output, for a spreadsheet or a plot: a row for each step, with
// what was evaluated after it.
//
//   step,time,loss,learning_rate,gradient_norm,seconds,samples_per_second,skipped,test_loss,test_accuracy
//
// Times are RFC 3339 in UTC. What there is not is empty: the loss of a skipped step, evaluations of most. A
// run that goes on from a checkpoint keeps the rows up to it, so that each step stands there once. Writing is
// a courtesy: where it fails, a warning says so once, and the run goes on.
#pragma once

#include <filesystem>
#include <memory>

#include "cli/listener.h"

namespace weft::cli {

std::unique_ptr<Listener> make_curves(std::filesystem::path file);

// The same for TensorBoard: an event file in `folder`, which is made where it is missing, with the scalars
// train/loss, train/learning_rate, train/gradient_norm, train/samples_per_second, test/loss, test/accuracy.
// Format: TFRecord frames with masked CRC-32C around tensorflow.Event messages.
std::unique_ptr<Listener> make_event_file(std::filesystem::path folder);

// CRC-32C (Castagnoli), as RFC 3720 has it; for tests.
uint32_t crc32c(std::string_view bytes);

}  // namespace weft::cli
