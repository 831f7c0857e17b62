// As recorder.py: recorder PORT FILE.
package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func main() {
	records, err := os.OpenFile(os.Args[2], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		panic(err)
	}
	answer := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		fields := [][]string{{"Host", r.Host}}
		for name, values := range r.Header {
			for _, value := range values {
				fields = append(fields, []string{name, value})
			}
		}
		for _, coding := range r.TransferEncoding {
			fields = append(fields, []string{"Transfer-Encoding", coding})
		}
		line, _ := json.Marshal(map[string]any{
			"method": r.Method, "target": r.RequestURI, "fields": fields, "length": len(body),
			"body": string(body[:min(len(body), 4096)]), "connection": r.RemoteAddr[strings.LastIndex(r.RemoteAddr, ":")+1:],
		})
		line = append(line, '\n')
		records.Write(line)
		w.Header().Set("Content-Length", strconv.Itoa(len(line)))
		w.Write(line)
	}
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(answer)))
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}
