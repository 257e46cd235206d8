// What the checkpoint tests share: a directory that vanishes with its test, raw files, and a tiny
// but whole gpt-oss checkpoint to damage. Tests only; one thread.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace holdfast::checkpoint {

class TempDir {
 public:
  TempDir() {
    std::string pattern = ::testing::TempDir() + "holdfast-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string path(const std::string& name = "") const {
    return name.empty() ? path_ : path_ + "/" + name;
  }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  ASSERT_TRUE(file.good()) << path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The bytes of a safetensors file with this header, as it stands, and so many zero bytes of data.
inline std::string raw_safetensors(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + std::string(data_bytes, '\0');
}

// config.json of a gpt-oss model with one layer; every size differs from the others.
inline std::string small_config_json() {
  return R"({"model_type":"gpt_oss","num_hidden_layers":1,"hidden_size":64,
    "intermediate_size":32,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
    "vocab_size":48,"num_local_experts":3,"num_experts_per_tok":2,"max_position_embeddings":128,
    "rms_norm_eps":1e-5,"rope_theta":10000,"sliding_window":16,
    "quantization_config":{"quant_method":"mxfp4"}})";
}

// What a checkpoint on disk is made of, to be changed before it is written.
struct SmallCheckpoint {
  struct Tensor {
    ExpectedTensor what;
    std::string data;
    std::string file = "model-00001-of-00002.safetensors";
  };
  std::string config_json = small_config_json();
  std::vector<Tensor> tensors;
  std::map<std::string, std::string> index;  // tensor to file

  static SmallCheckpoint make() {
    SmallCheckpoint made;
    const auto config = config::parse_model_config(made.config_json);
    const auto dialect = choose_dialect(*config);
    for (ExpectedTensor& expected : (*dialect)->expected(*config)) {
      made.add(std::move(expected));
    }
    return made;
  }
  // Every third tensor goes to the second shard.
  void add(ExpectedTensor what) {
    Tensor tensor{std::move(what), {}};
    const std::size_t bytes = *tensor::byte_size(tensor.what.dtype, tensor.what.shape);
    tensor.data.assign(bytes, static_cast<char>(tensors.size()));
    if (tensors.size() % 3 == 2) tensor.file = "model-00002-of-00002.safetensors";
    index[tensor.what.name] = tensor.file;
    tensors.push_back(std::move(tensor));
  }
  Tensor& find(const std::string& name) {
    for (Tensor& tensor : tensors) {
      if (tensor.what.name == name) return tensor;
    }
    ADD_FAILURE() << "no tensor " << name;
    return tensors.front();
  }
  void write(const std::string& directory) const {
    write_file(directory + "/config.json", config_json);
    std::map<std::string, std::vector<TensorToWrite>> shards;
    for (const Tensor& tensor : tensors) {
      shards[tensor.file].push_back({tensor.what.name, tensor.what.dtype, tensor.what.shape,
                                     std::as_bytes(std::span(tensor.data))});
    }
    for (const auto& [file, contents] : shards) {
      const auto status = write_safetensors(directory + "/" + file, contents);
      ASSERT_TRUE(status.ok()) << status.error().message();
    }
    std::string json;
    for (const auto& [tensor, file] : index) {
      json += (json.empty() ? "" : ",") + ("\"" + tensor + "\":\"" + file + "\"");
    }
    write_file(directory + "/model.safetensors.index.json", "{\"weight_map\":{" + json + "}}");
  }
};

}  // namespace holdfast::checkpoint
