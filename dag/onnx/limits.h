// How much of the world an ONNX file may claim before it is refused. Every count is taken from the bytes of
// the file by a scan (dag/onnx/scan.h) before protobuf builds objects from them, because protobuf can grow to
// 70 times the file's size in memory.
#pragma once

#include <cstdint>

namespace weft::onnx {

struct ImportLimits {
  // The .onnx file itself. Protobuf cannot address more than 2 GiB; larger models use external data.
  int64_t file_bytes_max = (int64_t{1} << 31) - 1;
  // One external data file, and all tensors together.
  int64_t weights_bytes_max = int64_t{1} << 40;
  // Wire-format counts over the whole file.
  int64_t node_count_max = 100'000;
  int64_t attribute_count_max = 500'000;
  int64_t tensor_count_max = 100'000;     // initializers and constants
  int64_t message_count_max = 2'000'000;  // of any kind: the sum of all the above and what hangs below them
  int64_t function_count_max = 10'000;
  int nesting_depth_max = 24;  // messages within messages; a flat model needs 7
  // What the calls of the model's own functions become: nodes, and bytes of them; and how many calls and
  // subgraphs stand in one another.
  int64_t expanded_node_count_max = 100'000;
  int64_t expanded_bytes_max = int64_t{16} << 20;
  int call_depth_max = 64;
  // Nodes that If, Loop and Scan make when their bodies are written out, iteration by iteration.
  int64_t unrolled_node_count_max = 50'000;
  // Of those, what a loop may make that says in each iteration whether there is another: only by doing them
  // does one see that they do not end.
  int64_t open_loop_node_count_max = 10'000;
  // Constants that an iteration makes (ranges, masks) count as nodes, too: one for so many bytes.
  int64_t unrolled_bytes_per_node = 512;
  // What protobuf will take beyond the bytes of tensors and strings, as estimated from the counts.
  int64_t parse_overhead_bytes_max = int64_t{40} << 20;
  // Characters of one name, operator or domain.
  int64_t name_bytes_max = 4096;
  int rank_max = 16;  // dims of a tensor
  // A value of the graph, folded or not.
  int64_t value_bytes_max = int64_t{16} << 30;
  // An initializer that is no parameter: larger ones are read where the graph runs and not by the import.
  int64_t known_bytes_max = int64_t{1} << 20;
  // Results of constant folding: larger ones stay ops of the graph, and once all of them together are more
  // than `folded_bytes_max`, nothing more is folded that need not be.
  int64_t folded_value_bytes_max = int64_t{8} << 20;
  int64_t folded_bytes_max = int64_t{32} << 20;
  int64_t made_bytes_max = int64_t{1} << 30;  // of ranges, masks and the like, all together
  int64_t folded_flop_count_max = 2'000'000'000;
};

}  // namespace weft::onnx
