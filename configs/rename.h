// Rules by which the names of one file become those of another: regular expressions, as ECMAScript has them.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace weft::configs {

class Rename {
 public:
  // `replacement` may name groups of the pattern, as $1. InvalidArgument, in words, for what is no pattern,
  // or one of more than 256 bytes.
  static Result<Rename> compile(const std::string& pattern, const std::string& replacement);

  // With every match replaced. Of a name of more than 1024 bytes, that name.
  std::string apply(const std::string& name) const;

 private:
  struct Compiled;  // the library costs seconds a file
  explicit Rename(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace weft::configs
