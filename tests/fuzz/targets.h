// What is fuzzed: each decoder behind which bytes from outside arrive, as a function of those bytes. It
// returns, whatever they are; a value that was decoded is looked at, for what its header promises of it.
//
// A target is a line here, a file of its name, and a line in CMakeLists.txt. libFuzzer calls it through
// entry.cc (preset fuzz), replay_test.cc on the kept corpus and some mutations of it (every preset).
#pragma once

#include <cstddef>
#include <span>

namespace weft::fuzz {

#define WEFT_FUZZ_TARGETS(X)                                                                 \
  X(addresses)    /* endpoints that others advertise, and a relay's preamble */              \
  X(answers)      /* what a service of the OpenAI API sends to a client, and where it is */  \
  X(cluster_file) /* YAML */                                                                 \
  X(codecs)       /* compressed payloads, and the names of codecs */                         \
  X(frames)       /* a connection's bytes, behind its TLS */                                 \
  X(graphs)       /* an encoded graph by itself */                                           \
  X(http)         /* what a client of HTTP sends */                                          \
  X(idx)          /* images and labels */                                                    \
  X(job_file)     /* YAML, with a --set */                                                   \
  X(manifests)    /* of checkpoints */                                                       \
  X(messages)     /* between peers, users and broker */                                      \
  X(nodes)        /* an operator's own case, its nodes changed as the bytes say */           \
  X(npy)          /* the dictionary in an array's header */                                  \
  X(npy_files)    /* an array as a data set, changed on its way */                           \
  X(npz)          /* the whole data set */                                                   \
  X(onnx)         /* from memory: scan, parse, import */                                     \
  X(onnx_files)   /* from a file with data beside it: read, outline, import, what to pack */ \
  X(openai)       /* requests for text, as JSON */                                           \
  X(packed)       /* a blob in fewer bytes */                                                \
  X(photos)       /* JPEG, PNG, WebP */                                                      \
  X(safetensors)  /* a file of tensors, its header alone, an index of such files */          \
  X(store_rows)   /* what the broker's database holds in a column */                         \
  X(tables)       /* CSV, and what kind a file is */                                         \
  X(tensors)      /* headers of tensors and pieces, chunks; payloads by their codec */       \
  X(tokenizers)   /* tokenizer.json, and a text for it; chat templates */                    \
  X(tokens)       /* join tokens */                                                          \
  X(zip)          /* a directory, and what its entries inflate to */

#define WEFT_FUZZ_DECLARE(name) void name(std::span<const std::byte> bytes);
WEFT_FUZZ_TARGETS(WEFT_FUZZ_DECLARE)
#undef WEFT_FUZZ_DECLARE

}  // namespace weft::fuzz
